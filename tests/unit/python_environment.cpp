#include <stdlib.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <fstream>
#include <ipybox/sandbox_kit/python_environment.hpp>
#include <iterator>

#include "test_support.hpp"

namespace python_environment_tests {

namespace {
using namespace ipybox;
using namespace std::chrono_literals;
namespace fs = std::filesystem;

struct Fixture {
    asio::io_context context;
    test::TemporaryDirectory directory;

    fs::path program(const std::string& name, std::string_view text) {
        const auto path = directory.path() / name;
        fs::create_directories(path.parent_path());
        test::write_file(path, text);
        fs::permissions(path, fs::perms(0755));
        return path;
    }
    PythonEnvironment inspect(const fs::path& python, Duration limit = 60s) {
        return test::run(context, inspect_python(context.get_executor(), python, limit));
    }
    void fails(const fs::path& python, std::string_view words, Duration limit = 60s) {
        BOOST_CHECK_EXCEPTION(inspect(python, limit), Error, [&](const Error& error) {
            BOOST_TEST_INFO(error.what());
            return error.code() == errc::missing_dependency &&
                   error.detail().find(words) != std::string::npos;
        });
    }
};

// Variables and directory of the search, put back at the end.
struct Surroundings {
    explicit Surroundings(const fs::path& directory) : before(fs::current_path()) {
        for (const char* name : {"PATH", "VIRTUAL_ENV", "IPYBOX_PYTHON"}) {
            const char* value = ::getenv(name);
            saved.emplace_back(name,
                               value == nullptr ? std::nullopt : std::optional<std::string>(value));
            ::unsetenv(name);
        }
        fs::current_path(directory);
    }
    ~Surroundings() {
        for (const auto& [name, value] : saved)
            value ? ::setenv(name, value->c_str(), 1) : ::unsetenv(name);
        fs::current_path(before);
    }
    std::vector<std::pair<const char*, std::optional<std::string>>> saved;
    fs::path before;
};
}  // namespace

BOOST_FIXTURE_TEST_SUITE(python_environment, Fixture)

BOOST_AUTO_TEST_CASE(kernel_interpreter_is_described) {
    const auto python = test::kernel_python();
    const auto found = inspect(python);
    BOOST_TEST(found.executable == python);
    BOOST_TEST(found.version.starts_with("3."));
    BOOST_TEST(found.ipykernel.has_value());
    BOOST_TEST(found.pip);
    BOOST_TEST(package_problem(found) == "");
    // A venv is outside /usr, so that the sandbox must be told to show it.
    const auto prefix = python.parent_path().parent_path();
    BOOST_TEST(std::count(found.readable.begin(), found.readable.end(), prefix) == 1);
    for (const auto& path : found.readable) BOOST_TEST(fs::is_directory(path), path);
}

BOOST_AUTO_TEST_CASE(every_link_to_the_interpreter_is_shown) {
    const auto real = fs::canonical("/usr/bin/python3");
    fs::create_directories(directory.path() / "one");
    fs::create_directories(directory.path() / "two");
    fs::create_symlink(real, directory.path() / "two/python");
    fs::create_symlink("../two/python", directory.path() / "one/python");
    const auto found = inspect(directory.path() / "one/python");
    for (const auto* name : {"one", "two"})
        BOOST_TEST(
            std::count(found.readable.begin(), found.readable.end(), directory.path() / name) == 1,
            name);
}

BOOST_AUTO_TEST_CASE(variables_of_the_user_have_no_say) {
    program("site/json.py", "raise SystemExit('planted')");
    ::setenv("PYTHONPATH", (directory.path() / "site").c_str(), 1);
    const auto found = inspect("/usr/bin/python3");
    ::unsetenv("PYTHONPATH");
    BOOST_TEST(found.version.starts_with("3."));
}

BOOST_AUTO_TEST_CASE(start_up_files_and_packages_of_the_interpreter_do_not_run) {
    const auto venv = directory.path() / "venv", mark = directory.path() / "ran";
    const auto make = test::kernel_python().string() + " -m venv --without-pip " + venv.string();
    BOOST_REQUIRE(std::system(make.c_str()) == 0);
    const auto python = venv / "bin/python";
    fs::path packages;
    for (const auto& entry : fs::directory_iterator(venv / "lib"))
        packages = entry.path() / "site-packages";
    const auto plant = "open('" + mark.string() + "', 'w')\n";
    test::write_file(packages / "planted.pth", "import os; " + plant);
    for (const char* name :
         {"sitecustomize.py", "usercustomize.py", "json.py", "importlib_metadata.py"})
        test::write_file(packages / name, plant);
    for (const char* name : {"ipykernel-7.1.0.dist-info", "pydantic-2.9.dist-info"}) {
        fs::create_directory(packages / name);
        const std::string package(name, std::string_view(name).find('-'));
        const std::string version(name + package.size() + 1,
                                  std::string_view(name).find(".dist") - package.size() - 1);
        test::write_file(packages / name / "METADATA", "Metadata-Version: 2.1\nName: " + package +
                                                           "\nVersion: " + version + "\n");
    }
    // A directory that a plain line names is one of Python's all the same.
    const auto added = directory.path() / "added";
    fs::create_directory(added);
    test::write_file(packages / "added.pth",
                     "# a comment\n" + added.string() + "\n\n/no/such/place\n");
    const auto found = inspect(python);
    BOOST_TEST(!fs::exists(mark));
    BOOST_TEST(!found.pip);  // made --without-pip
    BOOST_TEST(found.ipykernel.value_or("none") == "7.1.0");
    BOOST_TEST(found.pydantic.value_or("none") == "2.9");
    for (const auto& path : {venv, added})
        BOOST_TEST(std::count(found.readable.begin(), found.readable.end(), path) == 1, path);
    // So it would have been.
    BOOST_REQUIRE(std::system((python.string() + " -I -c pass").c_str()) == 0);
    BOOST_TEST(fs::exists(mark));
}

BOOST_AUTO_TEST_CASE(an_interpreter_is_asked_again_only_when_something_has_changed) {
    const auto venv = directory.path() / "venv", log = directory.path() / "log";
    const auto make = test::kernel_python().string() + " -m venv --without-pip " + venv.string();
    BOOST_REQUIRE(std::system(make.c_str()) == 0);
    const auto python = venv / "bin/python", real = fs::canonical(python);
    fs::remove(python);
    program("venv/bin/python", "#!/bin/bash\necho asked >> " + log.string() + "\nexec -a \"$0\" " +
                                   real.string() + " \"$@\"\n");
    fs::path packages;
    for (const auto& entry : fs::directory_iterator(venv / "lib"))
        packages = entry.path() / "site-packages";
    const auto added = directory.path() / "added";
    fs::create_directory(added);
    const auto install = [](const fs::path& place, const std::string& name) {
        fs::create_directory(place / (name + "-2.9.dist-info"));
        test::write_file(place / (name + "-2.9.dist-info/METADATA"),
                         "Metadata-Version: 2.1\nName: " + name + "\nVersion: 2.9\n");
    };
    const auto know = [&] {
        return test::run(context, known_python(context.get_executor(), python, 60s));
    };
    const auto asked = [&] {
        std::ifstream lines(log);
        return std::count(std::istreambuf_iterator(lines), {}, '\n');
    };
    BOOST_TEST(!know().pydantic);
    BOOST_TEST(!know().pydantic);
    BOOST_TEST(asked() == 1);
    install(packages, "pydantic");
    BOOST_TEST(know().pydantic.value_or("none") == "2.9");
    BOOST_TEST(asked() == 2);
    test::write_file(packages / "added.pth", "/no/such/place\n");
    BOOST_TEST(!know().ipykernel);
    BOOST_TEST(asked() == 3);
    test::write_file(packages / "added.pth", added.string() + "\n");
    BOOST_TEST(!know().ipykernel);
    install(added, "ipykernel");
    BOOST_TEST(know().ipykernel.value_or("none") == "2.9");
    BOOST_TEST(asked() == 5);
    test::write_file(venv / "pyvenv.cfg", "home = /usr/bin\n");
    know();
    BOOST_TEST(asked() == 6);
    BOOST_TEST(know().version == inspect(python).version);
    BOOST_TEST(asked() == 7);
}

BOOST_AUTO_TEST_CASE(what_code_could_write_is_no_interpreter_unless_it_is_named) {
    const auto& root = directory.path();
    const auto script = "#!/bin/sh\n";
    const auto path = program("bin/python3", script);
    const auto local = program("work/.venv/bin/python", script),
               active = program("work/active/bin/python", script);
    const auto planted = program("work/bin/python3", script);
    const Surroundings restore(root / "work");
    ::setenv("PATH", ((root / "work/bin").string() + ":" + (root / "bin").string()).c_str(), 1);
    SandboxPolicy policy;
    policy.writable = {root / "work"};
    policy.write_protected = {root / "work/.venv"};
    writable_places().record(policy);
    BOOST_TEST(find_python() == local);  // protected throughout
    fs::remove_all(root / "work/.venv");
    BOOST_TEST(find_python() == path);
    ::setenv("VIRTUAL_ENV", (root / "work/active").c_str(), 1);
    const auto denied = [](const Error& error) {
        return error.code() == errc::denied && error.detail().find("--python") != std::string::npos;
    };
    BOOST_CHECK_EXCEPTION(find_python(), Error, denied);
    BOOST_TEST(find_python({}, Trust::named) == active);
    BOOST_TEST(find_python(active) == active);
    BOOST_TEST(find_python("python3") == path);
    ::setenv("IPYBOX_PYTHON", planted.c_str(), 1);
    BOOST_TEST(find_python() == planted);
    ::unsetenv("IPYBOX_PYTHON");
    ::unsetenv("VIRTUAL_ENV");
    program("work/.venv/bin/python", script);
    policy.write_protected.clear();
    writable_places().record(policy);
    BOOST_CHECK_EXCEPTION(find_python(), Error, denied);
}

BOOST_AUTO_TEST_CASE(programs_that_are_no_interpreter_are_refused) {
    fails(directory.path() / "absent", "there is no such file");
    fails("/bin/true", "is not a working Python interpreter");
    fails(program("broken", "#!/bin/sh\necho 'no module named encodings' >&2; exit 1"),
          "no module named encodings");
    fails(program("silent", "#!/bin/sh\nexec sleep 1000"), "did not answer in time", 50ms);
    fails(program("endless", "#!/bin/sh\nexec yes"), "is not a working Python interpreter");
    fails(program("deep", "#!/bin/sh\nhead -c 100000 /dev/zero | tr '\\0' '['"),
          "is not a working Python");
    fails(program("list", "#!/bin/sh\necho '[]'"), "is not a working Python interpreter");
    fails(program("old", R"(#!/bin/sh
echo '{"version": "3.9.1", "paths": []}')"),
          "3.10 or newer");
}

BOOST_AUTO_TEST_CASE(chatter_before_the_answer_is_passed_over) {
    const auto found = inspect(program("chatty", R"(#!/bin/sh
echo hello from sitecustomize
echo '{"version": "3.11.0", "paths": ["/usr/lib", "/opt/a/b", "/opt/a", "/opt/a/", "/opt/ab", "relative", 7, "/"]}'
echo)"));
    BOOST_TEST(found.version == "3.11.0");
    BOOST_TEST((found.readable == std::vector<fs::path>{"/opt/a", "/opt/ab"}));
}

BOOST_AUTO_TEST_CASE(missing_packages_come_with_the_remedy) {
    PythonEnvironment environment;
    environment.executable = "/opt/python";
    environment.pip = true;
    const std::string remedy = "/opt/python -m pip install ipykernel 'pydantic>=2.7'";
    const auto problem = [&](std::string_view words) {
        const auto text = package_problem(environment);
        BOOST_TEST(text.find(words) != std::string::npos, text);
        BOOST_TEST(text.find(remedy) != std::string::npos, text);
    };
    problem("no ipykernel");
    environment.ipykernel = "6.29.0";
    problem("no pydantic");
    for (const char* old : {"1.10.2", "2.6.9", "", "x"}) {
        environment.pydantic = old;
        problem("2.7 or newer");
    }
    for (const char* good : {"2.7", "2.7.0", "2.10.1", "3.0a1"}) {
        environment.pydantic = good;
        BOOST_TEST(package_problem(environment) == "", good);
    }
}

BOOST_AUTO_TEST_CASE(a_python_of_the_system_is_left_as_it_is) {
    const auto found = inspect(program("managed", R"(#!/bin/sh
echo '{"version": "3.12.3", "paths": [], "managed": true}')"));
    BOOST_TEST(found.managed);
    const auto text = package_problem(found);
    BOOST_TEST(
        text.find(
            found.executable.string() +
            " -m venv ~/.ipybox-python && ~/.ipybox-python/bin/python -m pip install ipykernel "
            "'pydantic>=2.7' && export IPYBOX_PYTHON=") != std::string::npos,
        text);
    BOOST_TEST(text.find(found.executable.string() + " -m pip") == std::string::npos);
}

// As uv makes environments: those of tools can be changed, those of uvx cannot.
BOOST_AUTO_TEST_CASE(an_environment_without_pip_has_another_remedy) {
    PythonEnvironment environment;
    environment.executable = program("tools/ipybox/bin/python", "");
    const auto contains = [&](std::string_view words) {
        return package_problem(environment).find(words) != std::string::npos;
    };
    BOOST_TEST(contains("`uv pip install --python " + environment.executable.string() +
                        " ipykernel 'pydantic>=2.7'`"));
    test::write_file(directory.path() / "tools/ipybox/CACHEDIR.TAG", "");
    BOOST_TEST(contains("`uv pip install"));
    test::write_file(directory.path() / "tools/CACHEDIR.TAG", "");
    BOOST_TEST(contains("`uvx --with ipykernel --with 'pydantic>=2.7' …`"));
    BOOST_TEST(!contains("pip install"));
}

BOOST_AUTO_TEST_CASE(a_program_knows_the_environment_it_was_installed_into) {
    using sandbox_kit::python_of_installation;
    const auto installed = program("env/bin/ipybox", "");
    fs::create_symlink(installed, directory.path() / "linked");
    for (const auto& at : {installed, directory.path() / "linked"}) {
        BOOST_TEST(!python_of_installation(at).has_value());
        test::write_file(directory.path() / "env/pyvenv.cfg", "home = /usr/bin\n");
        BOOST_TEST(python_of_installation(at).value_or("") == directory.path() / "env/bin/python");
        fs::remove(directory.path() / "env/pyvenv.cfg");
    }
    fs::create_directory(directory.path() / "env/pyvenv.cfg");
    BOOST_TEST(!python_of_installation(installed).has_value());
    BOOST_TEST(!python_of_installation(directory.path() / "absent").has_value());
    BOOST_TEST(!python_of_installation().has_value());  // this program was installed into none
}

BOOST_AUTO_TEST_CASE(interpreter_is_searched_in_order) {
    const auto& root = directory.path();
    const auto script = "#!/bin/sh\n";
    const auto path = program("bin/python3", script);
    const Surroundings restore(root);
    ::setenv("PATH", (root / "bin").c_str(), 1);
    BOOST_TEST(find_python() == path);
    const auto local = program(".venv/bin/python", script);
    BOOST_TEST(find_python() == local);
    const auto active = program("active/bin/python", script);
    ::setenv("VIRTUAL_ENV", (root / "active").c_str(), 1);
    BOOST_TEST(find_python() == active);
    const auto chosen = program("chosen", script);
    ::setenv("IPYBOX_PYTHON", chosen.c_str(), 1);
    BOOST_TEST(find_python() == chosen);
    const auto given = program("given", script);
    BOOST_TEST(find_python(given) == given);
    BOOST_TEST(find_python("./given") == given);
    BOOST_TEST(find_python("python3") == path);
}

BOOST_AUTO_TEST_CASE(interpreter_that_was_named_must_exist) {
    const Surroundings restore(directory.path());
    ::setenv("PATH", directory.path().c_str(), 1);
    const auto fails_with = [](const fs::path& configured, std::string_view words) {
        BOOST_CHECK_EXCEPTION(find_python(configured), Error, [&](const Error& error) {
            return error.code() == errc::missing_dependency &&
                   error.detail().find(words) != std::string::npos;
        });
    };
    fails_with({}, "no Python interpreter found");
    program("python3", "#!/bin/sh\n");
    fails_with("/nowhere/python", "/nowhere/python");
    ::setenv("IPYBOX_PYTHON", "/nowhere/else", 1);
    fails_with({}, "IPYBOX_PYTHON names /nowhere/else");
}

BOOST_AUTO_TEST_CASE(links_in_the_directory_are_resolved_but_not_the_interpreter) {
    const auto python = program("venv/bin/python3.11", "#!/bin/sh\n");
    fs::create_symlink("python3.11", directory.path() / "venv/bin/python");
    fs::create_directory_symlink("venv", directory.path() / "alias");
    BOOST_TEST(find_python(directory.path() / "alias/bin/python") ==
               directory.path() / "venv/bin/python");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace python_environment_tests
