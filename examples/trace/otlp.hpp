#pragma once
// Spans as OpenTelemetry's OTLP/JSON, a line each: what its collectors read from a file.
#include <boost/json.hpp>
#include <ipybox/span.hpp>
#include <ostream>
#include <string>
#include <utility>

// For CodeExecutorOptions::on_span. The stream must outlive the executor.
class OtlpLines {
public:
    explicit OtlpLines(std::ostream& to, std::string service = "ipybox")
        : to_(to), service_(std::move(service)) {}

    void operator()(const ipybox::Span& span) const {
        if (span.end == 0) return;  // it has only begun
        namespace json = boost::json;
        const auto attribute = [](std::string_view key, std::string_view text) {
            return json::object{{"key", key}, {"value", {{"stringValue", text}}}};
        };
        const bool well = span.outcome == "ok" || span.outcome == "allowed";
        const json::object told{
            // A trace has an id of 32 digits, a span one of 16.
            {"traceId", span.root + span.root},
            {"spanId", span.id},
            {"parentSpanId", span.parent},
            {"name", span.kind == ipybox::Span::Kind::execution
                         ? span.name
                         : std::string(to_string(span.kind)) + " " + span.name},
            {"kind", span.kind == ipybox::Span::Kind::call ? 3 : 1},  // a client's, or internal
            {"startTimeUnixNano", std::to_string(span.begin)},
            {"endTimeUnixNano", std::to_string(span.end)},
            {"attributes",
             {attribute("ipybox.session", span.session),
              attribute("ipybox.outcome", span.outcome)}},
            {"status", {{"code", well ? 1 : 2}}}};
        const json::object resource{
            {"attributes", json::array{attribute("service.name", service_)}}};
        const json::object scope{{"scope", {{"name", "ipybox"}}}, {"spans", json::array{told}}};
        const json::object spans{{"resource", resource}, {"scopeSpans", json::array{scope}}};
        to_ << json::object{{"resourceSpans", json::array{spans}}} << std::endl;
    }

private:
    std::ostream& to_;
    std::string service_;
};
