"""Questions of our own: what the bound says, and whether the posterior can be trusted."""
