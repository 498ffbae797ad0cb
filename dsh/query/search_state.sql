-- What a page of a search is bound to: the newest event it may show.
-- → last_event (internal id)
SELECT last_event FROM store
