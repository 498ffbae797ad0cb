-- The files that agents wrote or edited, the newest change first.
-- :since = 30d from when on
-- :limit = 100 how many
WITH change(session, seq, cwd, path, at) AS (
  SELECT c.session_id, c.seq, s.cwd,
    coalesce(c.given ->> '$.file_path', c.given ->> '$.filePath', c.given ->> '$.path'), e.time
  FROM session s
    JOIN (SELECT *, iif(json_valid(arguments), arguments, '{}') AS given FROM tool_call) c ON c.session_id = s.id
    JOIN event e ON e.session_id = c.session_id AND e.seq = c.seq
  WHERE s.updated_at >= :since AND e.time >= :since AND c.is_error = 0
    AND lower(c.name) IN ('write', 'edit', 'multiedit', 'write_file', 'edit_file', 'replace', 'str_replace',
      'str_replace_editor', 'create_file', 'apply_patch', 'patch', 'text_editor')
    AND c.seq > coalesce((SELECT f.boundary FROM fork f WHERE f.id = s.id), -1)
)
SELECT iif(path GLOB '/*' OR cwd IS NULL, path, rtrim(cwd, '/') || '/' || path) AS file, count(*) AS changes,
  datetime(max(at) / 1000, 'unixepoch', 'localtime') AS last, session || ':' || seq AS place
FROM change WHERE path IS NOT NULL GROUP BY file ORDER BY max(at) DESC, file LIMIT :limit
