"""Shuffled reports: sealed by clients, mixed by the server, and added up by an analyzer."""

from flower_ldp.shuffle.analyzer import ReportAnalyzer
from flower_ldp.shuffle.batch import AnalyzerError, AnalyzerRefusal, ReportSums
from flower_ldp.shuffle.remote import Analyzer

__all__ = ["Analyzer", "AnalyzerError", "AnalyzerRefusal", "ReportAnalyzer", "ReportSums"]
