"""The only place that opens SQLite: connection, pragmas with their reasons, functions, guard, migrations, writes."""
