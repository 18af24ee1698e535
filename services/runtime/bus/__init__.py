"""The bus: one port, a Kafka and an in-memory implementation, one shared test suite for both."""
