"""Tell MLflow about the results."""
