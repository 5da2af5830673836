# The program, the authorities that TLS trusts, and nothing else: no shell, no libraries. docker build -t sluicegate .
# scripts/release makes the last stage alone, of what it has built itself: --build-context build=DIR takes the place of the first.
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
# A folder to mount: with a file that is mounted alone, a change would not reach the worker.
ENV SLUICEGATE_CONFIG=/etc/sluicegate/sluicegate.yaml
# A number, so that Kubernetes sees that it is not root.
USER 65532:65532
# Docker's; Kubernetes has its probes. It asks admin.listen whether the worker can take jobs.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s CMD ["/usr/bin/sluicegate", "health"]
ENTRYPOINT ["/usr/bin/sluicegate"]
CMD ["run"]
