// A kernel behind a gateway, used alone.
#include <ipybox/kernel_client.hpp>

#include "executor_fixture.hpp"

using namespace ipybox;
using namespace std::chrono_literals;

BOOST_AUTO_TEST_SUITE(kernel_client)

BOOST_AUTO_TEST_CASE(code_runs_behind_a_gateway_without_an_executor) {
    const test::JupyterServer server("gateway");
    asio::io_context context{1};
    auto plugins = test::registry();
    const test::TemporaryDirectory images;
    KernelClientOptions options;
    BOOST_TEST(options.port == 8888);
    options.host = "127.0.0.1";
    options.port = static_cast<std::uint16_t>(std::stoi(server.port()));
    options.token = test::JupyterServer::token;
    options.images_dir = images.path();
    options.kernel_init_timeout = 60s;
    KernelClient client(context.get_executor(), plugins, options);
    BOOST_CHECK_EXCEPTION(test::run(context, client.execute("1")), Error,
                          [](const Error& error) { return error.code() == errc::kernel_died; });
    test::run(context, client.connect());
    const auto id = client.kernel_id();
    BOOST_TEST(!id.empty());
    BOOST_TEST(test::run(context, client.execute("x = 6\nprint(x * 7)")).text.value() == "42");
    const auto drawn = test::run(context, client.execute("from IPython.display import Image, display\nimport base64\n"
                                                         "display(Image(data=base64.b64decode('iVBORw0KGgo='), format='png'))"));
    BOOST_TEST_REQUIRE(drawn.images.size() == 1u);
    BOOST_TEST((drawn.images[0].parent_path() == images.path()));
    test::run(context, client.reset());
    BOOST_TEST(client.kernel_id() != id);
    BOOST_TEST(test::run(context, client.execute("x")).error.find("NameError") != std::string::npos);
    test::run(context, client.disconnect());
    BOOST_TEST(client.kernel_id().empty());

    options.port = 1;
    KernelClient nobody(context.get_executor(), plugins, options);
    BOOST_CHECK_EXCEPTION(test::run(context, nobody.connect(2, 10ms)), Error, [](const Error& error) {
        return error.code() == errc::kernel_start_failed && error.detail().find("is the server running?") != std::string::npos;
    });
}

BOOST_AUTO_TEST_SUITE_END()
