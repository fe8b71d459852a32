// Which name was meant.
#include <boost/test/unit_test.hpp>
#include <ipybox/detail/nearest.hpp>
#include <string>
#include <vector>

namespace nearest_tests {

using namespace ipybox::detail;

std::string meant(const std::string& wanted, const std::vector<std::string>& names) {
    NearestName nearest(wanted);
    for (const auto& name : names) nearest.offer(name);
    return std::string(nearest.best());
}

BOOST_AUTO_TEST_SUITE(nearest)

BOOST_AUTO_TEST_CASE(what_is_changed_left_out_or_put_in_counts_one) {
    BOOST_TEST(edit_distance("path", "path") == 0u);
    BOOST_TEST(edit_distance("pth", "path") == 1u);
    BOOST_TEST(edit_distance("paths", "path") == 1u);
    BOOST_TEST(edit_distance("bath", "path") == 1u);
    BOOST_TEST(edit_distance("", "path") == 4u);
    BOOST_TEST(edit_distance("kitten", "sitting") == 3u);
}

BOOST_AUTO_TEST_CASE(the_nearest_is_found_if_it_is_near) {
    const std::vector<std::string> names{"content", "path", "paths", "read_file"};
    BOOST_TEST(meant("pth", names) == "path");
    BOOST_TEST(meant("pathes", names) == "paths");
    BOOST_TEST(meant("readfile", names) == "read_file");
    BOOST_TEST(meant("depth", names) == "");
    BOOST_TEST(meant("", names) == "");
    BOOST_TEST(meant("x", {}) == "");
    BOOST_TEST(meant("same", {"came", "some"}) == "came");  // the first of equals
}

BOOST_AUTO_TEST_CASE(neither_long_names_nor_many_take_long) {
    const std::string longest(1 << 20, 'a');
    BOOST_TEST(edit_distance(longest, longest + "b") == 0u);  // as far as they are compared
    BOOST_TEST(meant(longest, {longest + "b"}) == longest + "b");
    std::vector<std::string> many(100'000, "other");
    many.push_back("wanted");
    BOOST_TEST(meant("wantd", many) == "");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace nearest_tests
