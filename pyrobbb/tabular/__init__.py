"""From a table to a posterior in one call: the pieces of `fit`, with choices that suit small tables."""

from pyrobbb.tabular.fit import fit_table, load_table
from pyrobbb.tabular.model import NOISES, table_likelihood, table_prior

__all__ = ["NOISES", "fit_table", "load_table", "table_likelihood", "table_prior"]
