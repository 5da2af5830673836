# An image of the program and the certificate authorities that it trusts, without a shell or
# libraries: docker build -t sluicegate .
# scripts/release builds only the last stage, from its own build (--build-context build=DIR).
FROM docker.io/library/rust:1-bookworm AS build
RUN apt-get update && apt-get install -y --no-install-recommends musl-tools ca-certificates
WORKDIR /src
COPY . .
RUN target=$(uname -m)-unknown-linux-musl \
    && rustup target add "$target" \
    && cargo build --locked --release --bin sluicegate --target "$target" \
    && install -D "target/$target/release/sluicegate" /image/usr/bin/sluicegate \
    && install -D -m 644 /etc/ssl/certs/ca-certificates.crt /image/etc/ssl/certs/ca-certificates.crt

FROM scratch
COPY --from=build /image/ /
# Mount the folder: changes to a file that is mounted alone do not reach the worker.
ENV SLUICEGATE_CONFIG=/etc/sluicegate/sluicegate.yaml
# A number, because Kubernetes can't check that a name is not root's.
USER 65532:65532
# For Docker, which may replace unhealthy containers: a new one would not bring Redis or RabbitMQ
# back. Kubernetes has its own probes.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s CMD ["/usr/bin/sluicegate", "health", "--live"]
ENTRYPOINT ["/usr/bin/sluicegate"]
CMD ["run"]
