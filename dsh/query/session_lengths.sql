-- How long the sessions are that were imported from a tool, or forked off one that was.
-- prefix: of their ids
-- → id, length
SELECT id, length FROM session WHERE substr(id, 1, length(:prefix)) = :prefix
