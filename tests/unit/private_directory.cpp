#include <linux/magic.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <ipybox/detail/private_directory.hpp>

#include "test_support.hpp"

namespace private_directory_tests {

namespace {
using namespace ipybox;
using detail::PrivateDirectory;
namespace fs = std::filesystem;

BOOST_AUTO_TEST_SUITE(private_directory)

BOOST_AUTO_TEST_CASE(what_a_guest_could_fill_is_not_in_memory) {
    if (::geteuid() != 0) {
        BOOST_TEST_MESSAGE("skipped: only root has guests who are somebody else");
        return;
    }
    const PrivateDirectory ours(0, 65534, 0711), theirs(65534, 65534);
    struct statfs system{};
    BOOST_REQUIRE(::statfs("/run", &system) == 0);
    BOOST_TEST(ours.path().parent_path() == (system.f_type == TMPFS_MAGIC ? "/run" : "/tmp"));
    BOOST_TEST(theirs.path().parent_path() == "/tmp");
}

BOOST_AUTO_TEST_CASE(goes_with_all_that_was_planted) {
    const test::TemporaryDirectory place;
    test::write_file(place.path() / "kept", "kept");
    fs::path path;
    {
        const PrivateDirectory directory(place.path(), ::geteuid());
        path = directory.path();
        fs::path deep = path;
        for (int i = 0; i < 50; ++i) deep /= "deeper";
        fs::create_directories(deep);
        test::write_file(deep / "file", "x");
        fs::create_symlink(place.path() / "kept", path / "link");
        fs::create_directory_symlink(place.path(), path / "directory");
        fs::permissions(path / "deeper", fs::perms::none);
    }
    BOOST_TEST(!fs::exists(path));
    BOOST_TEST(test::read_file(place.path() / "kept") == "kept");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace
}  // namespace private_directory_tests
