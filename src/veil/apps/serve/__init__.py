"""The web app: uploads and jobs of visitors, the processes that work on them, the server, and the page itself."""
