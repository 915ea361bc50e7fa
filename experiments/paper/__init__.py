"""The tables and figures of Blundell et al. 2015, one command per file."""
