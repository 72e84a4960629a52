"""What runs it: one video, many videos, a live source, the web app, export."""
