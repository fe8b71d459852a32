#pragma once
// Jupyter servers for the tests, as processes of their own.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "test_support.hpp"

namespace ipybox::test {

// A server on a loopback port; killed at the end. Its kernels notice and end as well. It starts
// beside the test, which waits only when it asks for the address.
class JupyterServer {
public:
    static constexpr const char* token = "test-secret-token";

    // kind: server, gateway or enterprise, as in start_jupyter.py. secret: its token; empty: none.
    explicit JupyterServer(const std::string& kind, std::vector<std::string> options = {},
                           const std::filesystem::path& python = kernel_python(),
                           const std::string& secret = token) {
        const std::string script =
            required_environment("IPYBOX_TEST_SUPPORT") + "/start_jupyter.py";
        std::vector<std::string> argv = {python.string(), script, kind};
        argv.insert(argv.end(), options.begin(), options.end());
        const char* names[] = {"IdentityProvider.token=", "KernelGatewayApp.auth_token=",
                               "EnterpriseGatewayApp.auth_token="};
        const std::string name = names[kind == "server" ? 0 : kind == "gateway" ? 1 : 2];
        argv.push_back("--" + name + secret);
        if (kind == "server") argv.push_back("--ServerApp.root_dir=" + home_.path().string());
        std::array<int, 2> pipe{};
        if (::pipe2(pipe.data(), O_CLOEXEC) != 0) throw std::runtime_error("pipe failed");
        pid_ = ::fork();
        if (pid_ == 0) {
            ::prctl(PR_SET_PDEATHSIG, SIGKILL);
            ::dup2(pipe[1], 1);
            // Servers and kernels tell of every end of a test.
            if (std::getenv("IPYBOX_TEST_SERVER_LOG") == nullptr)
                ::dup2(::open("/dev/null", O_WRONLY), 2);
            ::close(pipe[0]);
            std::vector<char*> arguments;
            for (auto& argument : argv) arguments.push_back(argument.data());
            arguments.push_back(nullptr);
            std::string own_home = "HOME=" + home_.path().string(),
                        path = "PATH=" + python.parent_path().string() + ":/usr/bin:/bin";
            // What a killed kernel leaves behind goes with the server.
            std::string scratch = "TMPDIR=" + home_.path().string();
            std::array<char*, 4> environment = {own_home.data(), path.data(), scratch.data(),
                                                nullptr};
            if (::chdir(home_.path().c_str()) == 0)
                ::execve(arguments[0], arguments.data(), environment.data());
            ::_exit(127);
        }
        ::close(pipe[1]);
        output_ = pipe[0];
    }
    ~JupyterServer() {
        kill();
        ::close(output_);
    }
    JupyterServer(const JupyterServer&) = delete;
    JupyterServer& operator=(const JupyterServer&) = delete;

    void kill() {
        if (pid_ <= 0) return;
        ::kill(pid_, SIGKILL);
        ::waitpid(pid_, nullptr, 0);
        pid_ = -1;
    }
    // HOME and TMPDIR of its kernels.
    const std::filesystem::path& home() const { return home_.path(); }
    const std::string& port() const {
        char byte = 0;
        if (port_.empty())
            while (::read(output_, &byte, 1) == 1 && byte != '\n') port_ += byte;
        if (port_.empty()) throw std::runtime_error("the Jupyter server does not start");
        return port_;
    }
    std::string url() const { return "http://127.0.0.1:" + port(); }
    // What kernel_options needs to reach it.
    json::object kernel_options() const {
        json::object options;
        options["url"] = url();
        options["token"] = token;
        return options;
    }

private:
    TemporaryDirectory home_;
    pid_t pid_ = -1;
    int output_ = -1;
    mutable std::string port_;
};

}  // namespace ipybox::test
