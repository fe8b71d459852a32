#include <boost/test/unit_test.hpp>
#include <ipybox/sandbox_kit/system_package.hpp>

namespace system_package_tests {

using ipybox::sandbox_kit::install_command;

BOOST_AUTO_TEST_SUITE(system_package)

BOOST_AUTO_TEST_CASE(every_distribution_has_its_own_command) {
    const std::pair<const char*, const char*> releases[] = {
        {"PRETTY_NAME=\"Debian GNU/Linux 12\"\nID=debian\n", "apt-get install x"},
        {"ID=ubuntu\nID_LIKE=debian", "apt-get install x"},
        {"ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n", "apt-get install x"},
        {"ID=fedora\n", "dnf install x"},
        {"ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n", "dnf install x"},
        {"ID=\"opensuse-leap\"\nID_LIKE=\"suse opensuse\"\n", "zypper install x"},
        {"ID=arch\n", "pacman -S x"},
        {"ID='alpine'\n", "apk add x"},
    };
    for (const auto& [release, command] : releases)
        BOOST_TEST(install_command("x", release) == command, release);
}

BOOST_AUTO_TEST_CASE(an_unknown_one_gets_no_wrong_command) {
    for (const char* release : {"", "ID=", "ID=debianish", "VARIANT_ID=debian", "NAME=debian\n"})
        BOOST_TEST(
            install_command("x", release) == "install x with the package manager of your system",
            release);
    BOOST_TEST(install_command("x").find(" x") != std::string::npos);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace system_package_tests
