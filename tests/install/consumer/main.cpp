// Finds the installed plugins, makes one of each kind, and asks a policy.
#include <boost/asio/io_context.hpp>
#include <cstdlib>
#include <iostream>
#include <ipybox/ipybox.hpp>

int main(int count, char** arguments) try {
    if (count != 2) return 2;
    boost::asio::io_context context;
    ipybox::Host host{context.get_executor(), {}, {}};
    auto registry = ipybox::PluginRegistry::standard();
    for (const auto& entry : registry.list())
        if (!entry.file.string().starts_with(arguments[1])) {
            std::cerr << entry.file << " is not in " << arguments[1] << "\n";
            return 1;
        }
    registry.make<ipybox::Sandbox>("none", host, {});
    registry.make<ipybox::Sandbox>("bubblewrap", host, {});
    registry.make<ipybox::KernelBackend>("zmq", host, {});
    auto policy = registry.make<ipybox::ApprovalPolicy>("deny", host, {{"reason", "not today"}});

    ipybox::Decision decision;
    boost::asio::co_spawn(context,
                          ipybox::approve(*policy, ipybox::ToolCall{}, std::chrono::seconds(10)),
                          [&](std::exception_ptr error, ipybox::Decision answer) {
                              if (error) std::rethrow_exception(error);
                              decision = std::move(answer);
                          });
    context.run();
    const bool right = decision.verdict == ipybox::Verdict::deny && decision.reason == "not today";
    std::cout << "the policy said: " << decision.reason << "\n";
    return right ? EXIT_SUCCESS : EXIT_FAILURE;
} catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
}
