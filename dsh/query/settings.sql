-- Values stored by `dsh config set`.
-- → key, value (JSON)
SELECT key, value FROM setting ORDER BY key
