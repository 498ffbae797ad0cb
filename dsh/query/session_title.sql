-- A session's title.
-- session: id
-- → title (NULL without one)
SELECT title FROM title WHERE session_id = :session
