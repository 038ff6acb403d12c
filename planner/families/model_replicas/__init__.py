"""Asynchronous replicas of a partitioned model, with its servers, threads and segments."""
