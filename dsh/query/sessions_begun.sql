-- Sessions whose id begins with a text, newest first, to offer while an id is typed.
-- prefix: text; limit: rows
-- → id, title (NULL without one), updated_at
SELECT w.id, m.title, w.updated_at
FROM (SELECT id, updated_at FROM session WHERE hidden IS NULL AND substr(id, 1, length(:prefix)) = :prefix
      ORDER BY updated_at DESC, id DESC LIMIT :limit) w
CROSS JOIN title m ON m.session_id = w.id ORDER BY w.updated_at DESC, w.id DESC
