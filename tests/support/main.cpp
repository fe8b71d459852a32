// The test program's main(); Boost.Test is linked, not included.
#define BOOST_TEST_MODULE ipybox
#include <stdlib.h>

#include <boost/test/unit_test.hpp>
#include <filesystem>

namespace {
// What ipybox remembers of its sessions must not be that of whoever runs the tests.
struct OwnState {
    OwnState() {
        if (::mkdtemp(directory) != nullptr) ::setenv("XDG_STATE_HOME", directory, 1);
    }
    ~OwnState() {
        std::error_code ignored;
        std::filesystem::remove_all(directory, ignored);
    }
    char directory[32] = "/tmp/ipybox-state-XXXXXX";
};
}  // namespace
BOOST_TEST_GLOBAL_FIXTURE(OwnState);
