#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <ipybox/detail/base64.hpp>
#include <ipybox/detail/beneath.hpp>

#include "test_support.hpp"

namespace beneath_tests {

using namespace ipybox;
using namespace ipybox::detail;
namespace fs = std::filesystem;

namespace {
struct Fixture {
    test::TemporaryDirectory inside;
    test::TemporaryDirectory outside;
    UniqueFd root = open_directory(inside.path());
};
bool is_io_error(const Error& error) { return error.code() == errc::io_error; }
}  // namespace

BOOST_FIXTURE_TEST_SUITE(beneath, Fixture)

BOOST_AUTO_TEST_CASE(directories_and_files_are_made) {
    const auto directory = make_directory_beneath(root.get(), "a/b/./c");
    write_new_file(directory.get(), "file.bin", std::string_view("x\0y", 3));
    BOOST_TEST(test::read_file(inside.path() / "a/b/c/file.bin") == std::string("x\0y", 3));
    BOOST_CHECK_EXCEPTION(write_new_file(directory.get(), "file.bin", "again"), Error, is_io_error);
    BOOST_TEST(test::read_file(inside.path() / "a/b/c/file.bin") == std::string("x\0y", 3));
}

BOOST_AUTO_TEST_CASE(no_path_leads_out) {
    BOOST_CHECK_EXCEPTION(make_directory_beneath(root.get(), "../x"), Error, is_io_error);
    BOOST_CHECK_EXCEPTION(make_directory_beneath(root.get(), "/tmp"), Error, is_io_error);
    BOOST_CHECK_EXCEPTION(write_new_file(root.get(), "../x", ""), Error, is_io_error);
}

BOOST_AUTO_TEST_CASE(links_are_not_followed) {
    fs::create_directory_symlink(outside.path(), inside.path() / "link");
    fs::create_symlink(outside.path() / "target", inside.path() / "file");
    BOOST_CHECK_EXCEPTION(make_directory_beneath(root.get(), "link"), Error, is_io_error);
    BOOST_CHECK_EXCEPTION(make_directory_beneath(root.get(), "link/deeper"), Error, is_io_error);
    BOOST_CHECK_EXCEPTION(write_new_file(root.get(), "file", "x"), Error, is_io_error);
    BOOST_TEST(fs::is_empty(outside.path()));
}

BOOST_AUTO_TEST_CASE(base64) {
    BOOST_TEST(decode_base64("").value() == "");
    BOOST_TEST(decode_base64("Zg==").value() == "f");
    BOOST_TEST(decode_base64("Zm8=").value() == "fo");
    BOOST_TEST(decode_base64("Zm9v\nYmFy\n").value() == "foobar");
    BOOST_TEST(!decode_base64("Zg=").has_value());
    BOOST_TEST(!decode_base64("Z!==").has_value());
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace beneath_tests
