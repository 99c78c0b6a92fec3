"""The bus over Azure Service Bus: `bus` is the adapter, `connection` opens the links that it sends and
receives over."""
