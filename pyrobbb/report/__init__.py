"""One page for a run or a sweep: HTML that opens without a server. Needs the extra `report`."""

from pyrobbb.report.run import run_page
from pyrobbb.report.sweep import sweep_page

__all__ = ["run_page", "sweep_page"]
