"""The plugin host: hook points, scoped registration, services, configuration. It knows nothing of agents or tools."""
