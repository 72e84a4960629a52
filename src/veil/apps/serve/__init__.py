"""The web page: `uploads` and `jobs` (what visitors bring, and the processes that work on it), `work` (one such process),
`app` (the server), and the page itself (`page.html`, `page.css`, `page.js`)."""
