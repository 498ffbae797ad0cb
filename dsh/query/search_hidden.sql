-- Whether any session is hidden.
-- → 1, or no row
SELECT 1 FROM session WHERE hidden IS NOT NULL LIMIT 1
