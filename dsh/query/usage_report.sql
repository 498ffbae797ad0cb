-- What was used, by local day, session and model. A step that a fork inherited counts for the session that took it, so
-- that sums over sessions count it once; a hidden session counts, since what it used was used.
-- since, until: epoch ms or NULL; session: id or NULL
-- → day (2026-01-31), session_id, cwd, provider, model, requests, input (uncached), output, cache_read, cache_write,
--   reasoning
SELECT date(u.started_at / 1000, 'unixepoch', 'localtime'), u.session_id, s.cwd, u.provider, u.model, count(*),
  total(u.input_tokens), total(u.output_tokens), total(u.cache_read_tokens), total(u.cache_write_tokens),
  total(u.reasoning_tokens)
FROM usage u JOIN session s ON s.id = u.session_id
WHERE NOT u.inherited AND (:session IS NULL OR u.session_id = :session)
  AND (:since IS NULL OR u.started_at >= :since) AND (:until IS NULL OR u.started_at <= :until)
GROUP BY 1, 2, 4, 5 ORDER BY 1, 2
