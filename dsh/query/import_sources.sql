-- What was read of a tool's history.
-- tool: name
-- → path, stamp, state (JSON)
SELECT path, stamp, state FROM import_source WHERE tool = :tool
