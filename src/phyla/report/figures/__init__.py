"""Functions that make a Plotly figure from plain data; a report, a notebook and a dashboard use the same."""
