"""Our own questions: what the bound says, and whether the posterior can be trusted."""
