"""RegionGateway: sends a region's calls to its peers and serves theirs. One per node.

Its user_config is the Router's (``region``, ``engines``, ``documents``, ``openAccess``, ``logLevel``) and three keys more:

* ``federation``: ``{"name", "regions": [...], "health": {...}}``, regions and health as in the Federation document, whole;
* ``pkiFolder``: this region's folder of ``ca.pem``, ``cert.pem`` and ``key.pem``;
* ``listen``: ``HOST:PORT`` of its gRPC server, or ``null`` in a region that no peer can reach.
"""
