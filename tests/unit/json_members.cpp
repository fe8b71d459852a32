#include <boost/json/parse.hpp>
#include <boost/test/unit_test.hpp>
#include <ipybox/detail/json_members.hpp>
#include <ipybox/detail/json_memory.hpp>

namespace json_members_tests {

namespace json = boost::json;
using namespace ipybox::detail;

BOOST_AUTO_TEST_SUITE(json_members)

BOOST_AUTO_TEST_CASE(a_member_of_another_kind_is_none) {
    boost::system::error_code error;
    const auto value =
        parse_exact(R"({"text": "a", "empty": "", "number": 1, "long": 1e999, "null": null,
        "list": ["a"], "object": {"text": "b"}})",
                    error);
    BOOST_TEST_REQUIRE(!error);
    const auto& object = value.as_object();
    BOOST_TEST(string_of(object, "text") == "a");
    for (const char* key : {"empty", "number", "long", "null", "list", "object", "absent", ""})
        BOOST_TEST(string_of(object, key) == "");
    BOOST_TEST_REQUIRE(find_string(object, "empty"));
    BOOST_TEST(find_string(object, "empty")->empty());
    // A number that is kept with its digits is a string only to Boost.JSON.
    for (const char* key : {"number", "long", "null", "list", "object", "absent"})
        BOOST_TEST(!find_string(object, key));
    BOOST_TEST_REQUIRE(object_of(object, "object"));
    BOOST_TEST(string_of(*object_of(object, "object"), "text") == "b");
    for (const char* key : {"text", "number", "null", "list", "absent"})
        BOOST_TEST(!object_of(object, key));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace json_members_tests
