"""The waist: values, events, errors, ports and decisions. Knows no protocol, no HTTP, no SQL, no setting."""
