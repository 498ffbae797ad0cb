-- Tokens by day and model, those that a provider's cache served apart. dsh usage adds prices.
-- :since = 30d from when on
-- :until = NULL up to when
SELECT date(u.started_at / 1000, 'unixepoch', 'localtime') AS day, u.provider, u.model, count(*) AS requests,
  CAST(total(u.input_tokens) AS INTEGER) AS input, CAST(total(u.cache_read_tokens) AS INTEGER) AS cache_read,
  CAST(total(u.cache_write_tokens) AS INTEGER) AS cache_write,
  CAST(total(u.output_tokens) AS INTEGER) AS output
FROM usage u WHERE NOT u.inherited AND u.started_at >= :since AND (:until IS NULL OR u.started_at <= :until)
GROUP BY day, u.provider, u.model ORDER BY day, requests DESC
