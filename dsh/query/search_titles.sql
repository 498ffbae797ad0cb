-- Every session with its title, for a search in titles, those with the latest activity first.
-- → id, title, updated_at, cwd, source, hidden
SELECT s.id, t.title, s.updated_at, s.cwd, s.source, s.hidden
FROM session s CROSS JOIN title t ON t.session_id = s.id
ORDER BY s.updated_at DESC, s.id DESC
