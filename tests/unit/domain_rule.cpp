#include <arpa/inet.h>

#include <boost/test/unit_test.hpp>
#include <ipybox/net/domain_rule.hpp>

namespace domain_rule_tests {

namespace {
using namespace ipybox::net;
using namespace std::string_view_literals;

bool matches(std::string_view rule, std::string_view host, std::uint16_t port = 443,
             RuleList list = RuleList::allow) {
    const auto parsed = parse_domain_rule(rule, list);
    const auto name = canonical_host(host);
    BOOST_TEST_REQUIRE(parsed.has_value(), rule);
    return name && parsed->matches(*name, port);
}

AddressBytes address(const char* text) {
    unsigned char bytes[16];
    if (::inet_pton(AF_INET, text, bytes) == 1) return {bytes, 4};
    BOOST_TEST_REQUIRE(::inet_pton(AF_INET6, text, bytes) == 1, text);
    return {bytes, 16};
}

AddressKind kind(const char* text) { return classify_address(address(text), {}); }
}  // namespace

BOOST_AUTO_TEST_SUITE(domain_rule)

BOOST_AUTO_TEST_CASE(host_names_have_one_spelling) {
    BOOST_TEST(canonical_host("Example.COM").value() == "example.com");
    BOOST_TEST(canonical_host("example.com.").value() == "example.com");
    BOOST_TEST(canonical_host("localhost").value() == "localhost");
    BOOST_TEST(canonical_host("xn--bcher-kva.example").value() == "xn--bcher-kva.example");
    BOOST_TEST(canonical_host("1.2.3.4.example.com").value() == "1.2.3.4.example.com");
    // Letters that are digits in hexadecimal are a number only after 0x.
    BOOST_TEST(canonical_host("heise.de").value() == "heise.de");
    BOOST_TEST(canonical_host("0xcafe.ae").value() == "0xcafe.ae");
    const std::string label(63, 'a');
    BOOST_TEST(canonical_host(label + ".com").has_value());
    BOOST_TEST(!canonical_host(label + "a.com").has_value());
    const std::string longest = label + "." + label + "." + label + "." + std::string(61, 'a');
    BOOST_TEST(canonical_host(longest).has_value());
    BOOST_TEST(canonical_host(longest + ".").has_value());
    BOOST_TEST(!canonical_host(longest + "a").has_value());
}

BOOST_AUTO_TEST_CASE(what_is_not_a_host_name) {
    for (const auto host :
         {""sv, "."sv, ".."sv, "a..b"sv, ".a.com"sv, "a.com.."sv, "-a.com"sv, "a-.com"sv,
          "a_b.com"sv, "a b.com"sv, " a.com"sv, "a.com "sv, "a.com\n"sv, "a.com\r\nHost: b"sv,
          "a.com\0.b.com"sv, "a.com\0"sv, "user@a.com"sv, "a.com%00.b.com"sv, "a.com%2eb"sv,
          "a.com/b"sv, "a.com\\b"sv, "a.com#b"sv, "a.com?b"sv, "a.com:443"sv, "*.a.com"sv,
          "b\xc3\xbc"
          "cher.de"sv,
          "a\xe3\x80\x82"
          "com"sv,
          // Addresses in every form that resolvers read.
          "1.2.3.4"sv, "1.2.3.4."sv, "127.1"sv, "2130706433"sv, "017700000001"sv, "0177.0.0.1"sv,
          "0x7f000001"sv, "0x7f.0.0.1"sv, "0X7F.0.0.0x1"sv, "127.0.0.0x"sv, "a.0x7f"sv,
          "example.1"sv, "::1"sv, "[::1]"sv, "[::ffff:1.2.3.4]"sv, "fe80::1%eth0"sv, "0"sv, "0x"sv})
        BOOST_TEST(!canonical_host(host).has_value(), host);
}

BOOST_AUTO_TEST_CASE(rules_match_on_labels) {
    BOOST_TEST(matches("example.com", "example.com"));
    BOOST_TEST(matches("Example.com", "EXAMPLE.com."));
    for (const auto* host : {"a.example.com", "xexample.com", "example.com.evil.org", "com"})
        BOOST_TEST(!matches("example.com", host), host);
    BOOST_TEST(matches("*.example.com", "a.example.com"));
    BOOST_TEST(matches("*.example.com", "a.b.EXAMPLE.com."));
    for (const auto* host : {"example.com", "xexample.com", "a.xexample.com", "a.example.com.org"})
        BOOST_TEST(!matches("*.example.com", host), host);
    BOOST_TEST(matches("localhost", "localhost"));
    BOOST_TEST(!matches("localhost", "a.localhost"));
}

BOOST_AUTO_TEST_CASE(a_port_is_part_of_a_rule) {
    BOOST_TEST(matches("example.com", "example.com", 1));
    BOOST_TEST(matches("example.com", "example.com", 65535));
    BOOST_TEST(matches("example.com:443", "example.com", 443));
    BOOST_TEST(!matches("example.com:443", "example.com", 80));
    BOOST_TEST(matches("*.example.com:8443", "a.example.com", 8443));
    BOOST_TEST(!matches("*.example.com:8443", "a.example.com", 443));
}

BOOST_AUTO_TEST_CASE(a_deny_list_may_name_everything) {
    BOOST_TEST(matches("*", "example.com", 443, RuleList::deny));
    BOOST_TEST(matches("*:25", "example.com", 25, RuleList::deny));
    BOOST_TEST(!matches("*:25", "example.com", 26, RuleList::deny));
    BOOST_TEST(!parse_domain_rule("*", RuleList::allow).has_value());
    BOOST_TEST(!parse_domain_rule("*:443", RuleList::allow).has_value());
}

BOOST_AUTO_TEST_CASE(what_is_not_a_rule) {
    for (const auto rule : {""sv,
                            "*."sv,
                            "*.com"sv,
                            "com"sv,
                            "*.localhost"sv,
                            "*example.com"sv,
                            "a.*.com"sv,
                            "*.*.com"sv,
                            "example.*"sv,
                            "example.com."sv,
                            "*.example.com."sv,
                            "http://example.com"sv,
                            "example.com/"sv,
                            "example.com:"sv,
                            "example.com:0"sv,
                            "example.com:65536"sv,
                            "example.com:0443"sv,
                            "example.com:+443"sv,
                            "example.com:443x"sv,
                            "example.com:1:2"sv,
                            ":443"sv,
                            "10.0.0.1"sv,
                            "*.0.0.1"sv,
                            "[::1]:443"sv,
                            "2001:db8::1"sv,
                            "example.com\0"sv,
                            "**.example.com"sv,
                            "user@example.com"sv})
        for (const auto list : {RuleList::allow, RuleList::deny})
            BOOST_TEST(!parse_domain_rule(rule, list).has_value(), rule);
}

BOOST_AUTO_TEST_CASE(only_public_addresses_are_public) {
    using Kind = AddressKind;
    const std::pair<const char*, Kind> cases[] = {
        {"1.1.1.1", Kind::public_},
        {"9.255.255.255", Kind::public_},
        {"11.0.0.0", Kind::public_},
        {"100.63.255.255", Kind::public_},
        {"100.128.0.0", Kind::public_},
        {"172.15.255.255", Kind::public_},
        {"172.32.0.0", Kind::public_},
        {"198.17.255.255", Kind::public_},
        {"203.0.113.80", Kind::public_},
        {"223.255.255.255", Kind::public_},
        {"0.0.0.0", Kind::unspecified},
        {"0.1.2.3", Kind::reserved},
        {"10.1.2.3", Kind::private_},
        {"172.16.0.1", Kind::private_},
        {"172.31.255.255", Kind::private_},
        {"192.168.0.1", Kind::private_},
        {"100.64.0.1", Kind::private_},
        {"100.127.255.255", Kind::private_},
        {"127.0.0.1", Kind::loopback},
        {"127.255.255.254", Kind::loopback},
        {"169.254.1.1", Kind::link_local},
        {"169.254.169.254", Kind::metadata},
        {"169.254.170.2", Kind::metadata},
        {"100.100.100.200", Kind::metadata},
        {"168.63.129.16", Kind::metadata},
        {"192.0.0.192", Kind::metadata},
        {"192.0.0.1", Kind::reserved},
        {"192.88.99.1", Kind::reserved},
        {"198.18.0.1", Kind::reserved},
        {"198.19.255.255", Kind::reserved},
        {"224.0.0.1", Kind::multicast},
        {"239.255.255.250", Kind::multicast},
        {"240.0.0.1", Kind::reserved},
        {"255.255.255.255", Kind::reserved},
        {"2606:4700:4700::1111", Kind::public_},
        {"2001:4860:4860::8888", Kind::public_},
        {"3fff:ffff::1", Kind::public_},
        {"::", Kind::unspecified},
        {"::1", Kind::loopback},
        {"::2", Kind::embedding},
        {"::127.0.0.1", Kind::embedding},
        {"::ffff:127.0.0.1", Kind::embedding},
        {"::ffff:1.1.1.1", Kind::embedding},
        {"::ffff:0:127.0.0.1", Kind::embedding},
        {"64:ff9b::127.0.0.1", Kind::embedding},
        {"64:ff9b::169.254.169.254", Kind::embedding},
        {"64:ff9b:1::1", Kind::embedding},
        {"2002:7f00:1::", Kind::embedding},
        {"2001:0:4136:e378:8000:63bf:3fff:fdd2", Kind::embedding},
        {"2001:10::1", Kind::reserved},
        {"fc00::1", Kind::private_},
        {"fdff::1", Kind::private_},
        {"fd00:ec2::254", Kind::metadata},
        {"fd20:ce::254", Kind::metadata},
        {"fd00:ec2::23", Kind::metadata},
        {"fd00:c1::a9fe:a9fe", Kind::metadata},
        {"fd00:42::42", Kind::metadata},
        {"fd00:a9fe:a9fe::1", Kind::metadata},
        {"fd00:100::100:200", Kind::metadata},
        {"fd00:100::100:201", Kind::private_},
        {"fe80::1", Kind::link_local},
        {"febf::1", Kind::link_local},
        {"fec0::1", Kind::private_},
        {"ff02::1", Kind::multicast},
        {"100::1", Kind::reserved},
        {"4000::1", Kind::reserved},
        {"5f00::1", Kind::reserved},
    };
    for (const auto& [text, expected] : cases)
        BOOST_TEST((kind(text) == expected), text << " is " << describe(kind(text)));
}

BOOST_AUTO_TEST_CASE(addresses_of_this_machine_are_told) {
    const std::vector<AddressBytes> own = {address("203.0.113.5"), address("127.0.0.1"),
                                           address("2606:4700::5")};
    BOOST_TEST((classify_address(address("203.0.113.5"), own) == AddressKind::this_machine));
    BOOST_TEST((classify_address(address("2606:4700::5"), own) == AddressKind::this_machine));
    BOOST_TEST((classify_address(address("203.0.113.6"), own) == AddressKind::public_));
    BOOST_TEST((classify_address(address("127.0.0.1"), own) == AddressKind::loopback));
    BOOST_TEST((classify_address(AddressBytes("abc", 3), own) == AddressKind::reserved));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace domain_rule_tests
