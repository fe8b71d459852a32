// A kernel behind a gateway, used alone.
#include <boost/asio/ip/tcp.hpp>
#include <ipybox/executor/kernel_client.hpp>
#include <ipybox/executor/kernel_gateway.hpp>

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
    const auto drawn = test::run(
        context,
        client.execute("from IPython.display import Image, display\nimport base64\n"
                       "display(Image(data=base64.b64decode('iVBORw0KGgo='), format='png'))"));
    BOOST_TEST_REQUIRE(drawn.images.size() == 1u);
    BOOST_TEST((drawn.images[0].parent_path() == images.path()));
    test::run(context, client.reset());
    BOOST_TEST(client.kernel_id() != id);
    BOOST_TEST(test::run(context, client.execute("x")).error.find("NameError") !=
               std::string::npos);
    test::run(context, client.disconnect());
    BOOST_TEST(client.kernel_id().empty());

    options.port = 1;
    KernelClient nobody(context.get_executor(), plugins, options);
    BOOST_CHECK_EXCEPTION(
        test::run(context, nobody.connect(2, 10ms)), Error, [](const Error& error) {
            return error.code() == errc::kernel_start_failed &&
                   error.detail().find("is the server running?") != std::string::npos;
        });
}

BOOST_AUTO_TEST_CASE(a_gateway_serves_clients_until_it_is_stopped) {
    asio::io_context context{1};
    auto plugins = test::registry();
    const test::TemporaryDirectory place;
    KernelGatewayOptions options;
    BOOST_TEST(options.port == 8888);
    options.host = "127.0.0.1";
    {
        using Tcp = asio::ip::tcp;
        const Tcp::acceptor probe(context, Tcp::endpoint(asio::ip::address_v4::loopback(), 0));
        options.port = probe.local_endpoint().port();
    }
    options.working_dir = place.path();
    options.env["GIVEN"] = "value";
    options.python = test::kernel_python();
    KernelGateway gateway(context.get_executor(), options);
    test::run(context, gateway.start());
    BOOST_CHECK_EXCEPTION(test::run(context, gateway.start()), Error,
                          [](const Error& error) { return error.code() == errc::busy; });
    KernelClientOptions wanted;
    wanted.host = options.host;
    wanted.port = options.port;
    wanted.token = gateway.token();
    wanted.kernel_init_timeout = 60s;
    KernelClient client(context.get_executor(), plugins, wanted);
    test::run(context, client.connect(600, 100ms));
    BOOST_TEST(
        test::run(context, client.execute("import os; print(os.environ['GIVEN'], os.getcwd(),"
                                          " 'IPYBOX_GATEWAY_TOKEN' in os.environ)"))
            .text.value() == "value " + place.path().string() + " False");
    test::run(context, client.disconnect());
    test::run(context, gateway.stop());
    BOOST_TEST(!test::run(context, gateway.join()).has_value());
    BOOST_CHECK_THROW(test::run(context, client.connect(0, 10ms)), Error);
}

BOOST_AUTO_TEST_SUITE_END()
