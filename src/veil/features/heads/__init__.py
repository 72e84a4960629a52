"""What must survive in a video's features: actions (`action`), their times (`detection`), anomalies (`anomaly`)."""
