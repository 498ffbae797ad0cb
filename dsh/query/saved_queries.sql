-- The statements that the user gave a name.
-- → name, sql, about, saved_at
SELECT name, sql, about, saved_at FROM saved_query ORDER BY name
