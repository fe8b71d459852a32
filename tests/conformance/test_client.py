"""The client (conformance_client: McpClient, streamable_http, OAuth) against the conformance suite."""
import unittest

import suite


class ClientTest(suite.ConformanceCase):
    role = "client"
    unscored = frozenset({
        "json-schema-2020-12-preservation", "auth/client-credentials-basic", "auth/client-credentials-jwt", "auth/dpop",
        "auth/dpop-nonce", "auth/enterprise-managed-authorization", "auth/wif-jwt-bearer",
    })

    def test_2025_11_25(self):
        self.check("2025-11-25", "--command", str(suite.program("conformance_client")))

    def test_2026_07_28(self):
        self.check("2026-07-28", "--command", str(suite.program("conformance_client")))


if __name__ == "__main__":
    unittest.main()
