"""The center of the gateway: values, errors, ports and decisions. It knows no protocol, HTTP, SQL or setting."""
