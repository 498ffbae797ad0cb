-- A value kept because it takes long to find out.
-- key: its name
-- → value (JSON)
SELECT value FROM cache WHERE key = :key
