"""``python -m serve_app.cli``."""

from serve_app.cli.main import main

raise SystemExit(main())
