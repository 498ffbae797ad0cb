-- What was used, by local day, session and model. A step that a fork inherited counts for the session that took it, so
-- that sums over sessions count it once; a hidden session counts, since what it used was used. A log
-- from elsewhere may hold anything as a figure; what is no count is left out.
-- since, until: epoch ms or NULL; session: id or NULL
-- → day (2026-01-31), session_id, cwd, provider, model, requests, input (uncached), output, cache_read, cache_write,
--   reasoning
SELECT date(u.started_at / 1000, 'unixepoch', 'localtime'), u.session_id, s.cwd, u.provider, u.model, count(*),
  total(u.input_tokens) FILTER (WHERE typeof(u.input_tokens) = 'integer' AND u.input_tokens > 0),
  total(u.output_tokens) FILTER (WHERE typeof(u.output_tokens) = 'integer' AND u.output_tokens > 0),
  total(u.cache_read_tokens) FILTER (WHERE typeof(u.cache_read_tokens) = 'integer' AND u.cache_read_tokens > 0),
  total(u.cache_write_tokens) FILTER (WHERE typeof(u.cache_write_tokens) = 'integer' AND u.cache_write_tokens > 0),
  total(u.reasoning_tokens) FILTER (WHERE typeof(u.reasoning_tokens) = 'integer' AND u.reasoning_tokens > 0)
FROM usage u JOIN session s ON s.id = u.session_id
WHERE NOT u.inherited AND u.session_id BETWEEN coalesce(:session, '') AND coalesce(:session, x'')  -- no text is behind a blob
  AND (:since IS NULL OR u.started_at >= :since) AND (:until IS NULL OR u.started_at <= :until)
GROUP BY 1, 2, 4, 5 ORDER BY 1, 2
