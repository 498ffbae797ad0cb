-- Sessions whose id begins with a text, to complete what a person typed.
-- prefix: text
-- → id, title (NULL without one)
SELECT w.id, m.title
FROM (SELECT id FROM session WHERE substr(id, 1, length(:prefix)) = :prefix ORDER BY id LIMIT 6) w
CROSS JOIN title m ON m.session_id = w.id ORDER BY w.id
