"""Histograms, quantiles, means and variances of columns, noised and charged. Names load when first used."""

from __future__ import annotations

from dpfed.names import load_lazily

_HOME = {
    "ColumnEstimate": "dpfed.analytics.answers",
    "ColumnRelease": "dpfed.analytics.releases",
    "Histogram": "dpfed.analytics.queries",
    "Moments": "dpfed.analytics.queries",
    "Owner": "dpfed.analytics.sites",
    "ColumnStudy": "dpfed.analytics.sites",
    "ask_bounds": "dpfed.analytics.sites",
    "find_bounds": "dpfed.analytics.scaling",
    "find_least_count": "dpfed.analytics.scaling",
    "find_scale": "dpfed.analytics.scaling",
    "read_parts": "dpfed.analytics.tables",
}

__all__ = [*_HOME]

__getattr__, __dir__ = load_lazily(__name__, _HOME)
