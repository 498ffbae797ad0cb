-- Sessions whose id begins with a text, to complete what a person typed.
-- prefix: text
-- → id
SELECT id FROM session WHERE substr(id, 1, length(:prefix)) = :prefix ORDER BY id LIMIT 6
