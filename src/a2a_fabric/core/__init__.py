"""The center of the gateway: values, events, errors, ports and decisions. It knows no protocol, HTTP, SQL or setting."""
